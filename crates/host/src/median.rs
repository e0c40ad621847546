//! The median of measurements.

/// The middle value, or the mean of the two in the middle; `None` of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let value = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(value);
    }
    Some((sorted[middle - 1] + value) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_even_counts_lie_between() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
    }
}
