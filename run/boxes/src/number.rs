//! Whole numbers of a range, as command lines have them.

use std::num::ParseIntError;
use std::ops::RangeInclusive;
use thiserror::Error;

/// Text that is not a whole number of a range.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NumberError {
    /// Not a whole number of 64 bits.
    #[error(transparent)]
    Text(#[from] ParseIntError),
    /// Outside the range.
    #[error("{number} is not from {} to {}", range.start(), range.end())]
    Outside {
        /// The number.
        number: u64,
        /// The numbers that are possible.
        range: RangeInclusive<u64>,
    },
}

/// A parser of the whole numbers in `range`, all of which must be values of `T`.
pub fn within<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, NumberError> + Clone {
    move |text| {
        let number = text.parse()?;
        let inside = Some(number).filter(|number| range.contains(number));
        let value = inside.and_then(|number| T::try_from(number).ok());
        value.ok_or_else(|| NumberError::Outside { number, range: range.clone() })
    }
}

/// A parser of the whole numbers from `first` on.
pub fn at_least(first: u64) -> impl Fn(&str) -> Result<u64, NumberError> + Clone {
    within(first..=u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_its_range_is_refused_with_the_range() {
        let parse = within::<u16>(2..=300);
        assert_eq!((parse("2"), parse("300")), (Ok(2), Ok(300)));
        for number in [0, 1, 301, 70_000, u64::MAX] {
            let outside = NumberError::Outside { number, range: 2..=300 };
            assert_eq!(parse(&number.to_string()), Err(outside));
        }
        for text in ["", "-1", "1.5", "two", "18446744073709551616"] {
            assert!(matches!(parse(text), Err(NumberError::Text(_))), "{text}");
        }
        assert_eq!(at_least(1)("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(at_least(1)("0"), Err(NumberError::Outside { number: 0, range: 1..=u64::MAX }));
    }
}
