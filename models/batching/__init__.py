"""Makes one operator of the equal operators of several models; one file for each kind of operator."""
