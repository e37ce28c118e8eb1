//! What a client may do before it has proved who it is: nothing that a pool would see.
