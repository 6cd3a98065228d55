"""Speed, side by side in one run: ratios hold on a shared machine, absolute times do not."""
