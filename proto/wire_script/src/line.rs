//! One line of a script: words, some of which are `key=value`.

use longhaul_units::{Duration, LKey, Psn, RKey};
use longhaul_work::{Mtu, Sge};
use std::collections::HashMap;

use crate::KEY;

/// The words of a line.
pub struct Line<'a> {
    /// All of them, in order.
    pub words: Vec<&'a str>,
    values: HashMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    /// Splits `line` at white space.
    pub fn of(line: &'a str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let values = words.iter().filter_map(|w| w.split_once('=')).collect();
        Line { words, values }
    }

    /// True if `word` is on the line.
    pub fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// The value of `key`.
    pub fn value(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).copied()
    }

    /// The value of `key` as a number.
    pub fn number(&self, key: &str, default: u64) -> u64 {
        self.value(key).map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{key}={v}")))
    }

    /// The value of `psn`.
    pub fn psn(&self) -> Psn {
        Psn::new(self.number("psn", 0) as u32)
    }

    /// The value of `mtu`, in bytes.
    pub fn mtu(&self, default: u64) -> Mtu {
        Mtu::from_code((self.number("mtu", default) / 256).ilog2() as u8 + 1).expect("an MTU")
    }

    /// The value of `rkey`.
    pub fn rkey(&self) -> RKey {
        RKey(self.number("rkey", KEY.into()) as u32)
    }

    /// The range that `at` and `len` describe, as `parts` segments.
    pub fn segments(&self, default_len: u64) -> Vec<Sge> {
        let (at, len, parts) =
            (self.number("at", 0), self.number("len", default_len), self.number("parts", 1));
        let lkey = LKey(self.number("lkey", KEY.into()) as u32);
        let cut = |part: u64| len * part / parts;
        let piece = |p| Sge { address: at + cut(p), len: (cut(p + 1) - cut(p)) as u32, lkey };
        (0..parts).map(piece).collect()
    }
}

/// Reads `5us`, `1ms` or `20ns`.
pub fn duration(text: &str) -> Duration {
    let digits = text.find(|c: char| !c.is_ascii_digit()).expect("a unit");
    let n: u64 = text[..digits].parse().expect("a number");
    match &text[digits..] {
        "ns" => Duration::from_ns(n),
        "us" => Duration::from_us(n),
        "ms" => Duration::from_ms(n),
        unit => panic!("unit {unit}"),
    }
}

/// Panics unless each word of `wanted` is in `found`, and none of those behind a `!`.
pub fn holds(wanted: &[&str], found: &str) {
    let words: Vec<_> = found.split_whitespace().collect();
    for &want in wanted {
        let right = match want.strip_prefix('!') {
            Some(not) => !words.contains(&not),
            None => words.contains(&want),
        };
        assert!(right, "wanted {want}, found: {found}");
    }
}
