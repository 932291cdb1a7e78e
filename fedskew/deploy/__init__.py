"""What a deployed client needs: adapting, predicting, generating, exporting, noticing change."""
