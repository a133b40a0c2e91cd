-- Returns the table's time.
return text(table_time())
