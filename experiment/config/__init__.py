"""What can be set, and the checks that a setting passes before anything starts."""
