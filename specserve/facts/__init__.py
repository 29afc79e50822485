"""What is true outside of the profile. Knows no rule."""
