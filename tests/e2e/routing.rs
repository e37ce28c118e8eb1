//! Read preference, cursors and transactions land on the right server.
