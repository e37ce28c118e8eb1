//! Tables whose rows are created when they are used for the first time.

/// The row at `index`; adds the row if it is missing.
pub(super) fn row<T: Default>(rows: &mut Vec<Option<Box<T>>>, index: usize) -> &mut T {
    if rows.len() <= index {
        rows.resize_with(index + 1, || None);
    }
    let place = rows
        .get_mut(index)
        .expect("the rows were just made long enough");
    place.get_or_insert_default()
}

pub(super) fn merge_rows<T: Default>(
    mine: &mut Vec<Option<Box<T>>>,
    theirs: Vec<Option<Box<T>>>,
    merge: impl Fn(&mut T, &T),
) {
    for (index, sums) in theirs.into_iter().enumerate() {
        if let Some(sums) = sums {
            merge(row(mine, index), &sums);
        }
    }
}
