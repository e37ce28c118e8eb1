//! How many files and sockets the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of descriptors to the hard one, which needs no right; the limit then, or `None` for none.
pub fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.or(limit.current)?;
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(hard),
            maximum: limit.maximum,
        },
    );
    Some(match raised {
        Ok(()) => hard,
        // Refused all the same: the soft one holds.
        Err(_) => limit.current.unwrap_or(hard),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let raised = raise_descriptor_limit();
        assert!(raised.is_some_and(|raised| raised > 1));
        assert_eq!(raised, hard.or(raised));
        assert_eq!(getrlimit(Resource::Nofile).current, raised);
    }
}
