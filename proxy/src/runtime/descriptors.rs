//! The limit on the number of file descriptors (open files and sockets) of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the process's soft limit on file descriptors to its hard limit. This needs no privilege.
/// Returns the soft limit after the call; `None` if there is no limit.
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
        // The system refused the change, so the soft limit is unchanged.
        Err(_) => limit.current.unwrap_or(hard),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_file_descriptors_is_raised_to_the_hard_limit() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let raised = raise_descriptor_limit();
        assert!(raised.is_some_and(|raised| raised > 1));
        assert_eq!(raised, hard.or(raised));
        assert_eq!(getrlimit(Resource::Nofile).current, raised);
    }
}
