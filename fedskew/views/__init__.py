"""What a finished run or comparison shows: tables for the terminal and files, and figures."""
