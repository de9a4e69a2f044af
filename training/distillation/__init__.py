"""Learning from a teacher: blockwise targets, online teacher, pseudo-labels."""
