//! Tables that create a row when the row is used for the first time.

/// The row at `index`; adds the row if it is missing.
pub(super) fn row<T: Default>(rows: &mut Vec<Option<Box<T>>>, index: usize) -> &mut T {
    if rows.len() <= index {
        rows.resize_with(index + 1, || None);
    }
    let row = rows
        .get_mut(index)
        .expect("the rows were just made long enough");
    row.get_or_insert_default()
}

/// Merges each row of `others` into the row of `rows` with the same index.
pub(super) fn merge_rows<T: Default>(
    rows: &mut Vec<Option<Box<T>>>,
    others: Vec<Option<Box<T>>>,
    merge: impl Fn(&mut T, &T),
) {
    for (index, sums) in others.into_iter().enumerate() {
        if let Some(sums) = sums {
            merge(row(rows, index), &sums);
        }
    }
}
