"""Metadata documents of tables and views, and the rules by which commits change them. Pure, but for `documents`."""
