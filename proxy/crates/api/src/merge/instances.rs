//! Merges the replies of instances, and adds the addresses of instances to error texts.

use super::Merge;

/// Adds `distributions=true` to the query of a path.
pub fn with_distributions(path: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}distributions=true")
}

/// Merges the reply of the instance at `address` into `sum`.
///
/// # Errors
/// If the reply lacks distributions that the merge needs. `sum` is then unchanged.
pub fn add_reply<T: Merge>(sum: &mut Option<T>, address: &str, mut reply: T) -> Result<(), String> {
    if !reply.is_mergeable() {
        return Err(format!(
            "{address}: its version of Seawall reports no distributions, so its figures cannot be merged"
        ));
    }
    reply.set_instance(address);
    match sum {
        Some(sum) => sum.merge(reply),
        None => *sum = Some(reply),
    }
    Ok(())
}

/// The text of an error with the address of its instance. The address is added only if the text
/// does not contain it.
pub fn with_address(address: &str, error: &str) -> String {
    match error.contains(address) {
        true => error.to_owned(),
        false => format!("{address}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Shapes, Status};

    #[test]
    fn distributions_parameter_is_added_to_paths_with_and_without_a_query() {
        assert_eq!(with_distributions("/a"), "/a?distributions=true");
        assert_eq!(with_distributions("/a?b=1"), "/a?b=1&distributions=true");
    }

    /// A status has no distributions, so it can always be merged. A list of query shapes can be
    /// merged only if it has the distributions of the durations.
    #[test]
    fn status_is_merged_and_a_list_of_shapes_without_distributions_is_refused() {
        let mut sum = Some(Status::default());
        let reply = Status {
            clients: 3,
            ..Status::default()
        };
        add_reply(&mut sum, "http://a:1", reply).unwrap();
        assert_eq!(sum.unwrap().clients, 3);
        let old = Shapes {
            shapes: vec![Shape {
                count: 1,
                ..Shape::default()
            }],
            ..Shapes::default()
        };
        let mut sum = None;
        let error = add_reply(&mut sum, "http://b:1", old).unwrap_err();
        assert!(
            error.starts_with("http://b:1: ") && sum.is_none(),
            "{error}"
        );
    }

    #[test]
    fn error_text_contains_the_address_of_its_instance_only_once() {
        let address = "http://a:1";
        assert_eq!(with_address(address, "no token"), "http://a:1: no token");
        let error = "cannot reach Seawall at http://a:1: refused";
        assert_eq!(with_address(address, error), error);
    }
}
