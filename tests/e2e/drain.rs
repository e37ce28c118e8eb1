//! SIGTERM and its kin: clients move on, nothing fails.
