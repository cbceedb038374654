"""What several test files share. Test files import from here, never from each other."""
