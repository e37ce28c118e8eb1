//! No reply ever reaches another client, whatever clients do.
