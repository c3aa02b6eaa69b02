"""What runs and studies leave behind: records, folders, comparisons and tables. None of it needs torch."""
