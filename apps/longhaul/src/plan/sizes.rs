//! A range of message sizes.

use longhaul_boxes::quantity::Size;
use std::str::FromStr;

/// Sizes from one to another, doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    least: u64,
    most: u64,
}

impl Sizes {
    /// The longest message of RDMA.
    const MOST: u64 = 1 << 31;

    /// The range from the first to the second.
    pub fn between((least, most): (u64, u64)) -> Self {
        Sizes { least, most }
    }

    /// All sizes, including the last even if it is not a step.
    pub fn all(self) -> Vec<u64> {
        let mut sizes: Vec<u64> =
            std::iter::successors(Some(self.least), |size| size.checked_mul(2))
                .take_while(|&s| s < self.most)
                .collect();
        sizes.push(self.most);
        sizes
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let size = |text: &str| -> Result<u64, String> {
            let size = text.trim_start_matches('=').parse::<Size>().map_err(|e| e.to_string())?;
            if size.bytes() > Self::MOST {
                return Err(format!("a message has at most 2 GiB, not {size}"));
            }
            Ok(size.bytes())
        };
        let (least, most) = (size(least)?, size(most)?);
        if least > most {
            return Err(format!(
                "runs backwards: write {}..{}",
                Size::from_bytes(most),
                Size::from_bytes(least)
            ));
        }
        Ok(Sizes { least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_double_and_end_where_they_say() {
        assert_eq!("4K..16K".parse::<Sizes>().unwrap().all(), [4096, 8192, 16_384]);
        assert_eq!("3..10".parse::<Sizes>().unwrap().all(), [3, 6, 10]);
        assert_eq!("64K".parse::<Sizes>().unwrap().all(), [65_536]);
        assert_eq!("1..2G".parse::<Sizes>().unwrap().all().len(), 32);
        for text in ["", "..", "4K..", "8M..4K", "0..4K", "4K..3G", "-1..4"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
