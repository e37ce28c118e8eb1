//! Starting: configuration, a deployment that is down, TLS, unix sockets.
