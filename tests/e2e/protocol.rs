//! Messages of every form, well made and malformed, answered as a server would.
