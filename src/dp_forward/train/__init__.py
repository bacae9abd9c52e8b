"""What a provider does with a cut model: release, fine-tune, pre-train, and the DP-SGD baseline."""
