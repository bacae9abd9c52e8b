"""DP-SGD with Opacus, the baseline."""
