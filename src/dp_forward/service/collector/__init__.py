"""Fine-tuning over the wire: users push released records, a provider collects them and exports a corpus."""
