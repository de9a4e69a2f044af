"""What a batch's loss is: CTC, minimum word error rate."""
