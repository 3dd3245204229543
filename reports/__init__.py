"""Run records rendered for people: terminal, one-file HTML, Markdown, JUnit."""
