"""How clients reach a table's files, and who may use the catalog."""
