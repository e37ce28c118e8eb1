//! Where credentials come from, and every rule that makes it safe.
