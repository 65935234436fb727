//! Compares the cost of paired boxes with that of their parts, measured in the same run: boxes
//! without coding and encryption, bare coding, bare encryption.

use super::cell::Setup;
use longhaul_datapath::{Measured, Ticks};
use longhaul_fec::{Body, Encoder, Layout};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::hint::black_box;

/// Rounds of each part, whose median is used: most are too short to be interrupted.
const ROUNDS: usize = 501;
/// Packets of a round.
const PACKETS: u64 = 64;
/// Head that the transport adds and the encoder codes with each payload.
const HEAD: [u8; 94] = [7; 94];
/// Symbols of the layout that stands for all with one parity: the cost per symbol does not depend
/// on their number.
const SYMBOLS: usize = 32;

/// Ticks per packet of paired boxes and of their parts.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Boxes with parity and keys.
    whole: f64,
    /// Boxes without parity and keys.
    plain: f64,
    /// Coding as many bytes, without repair.
    coding: f64,
    /// Sealing and opening with AES-256-GCM in place.
    encryption: f64,
}

impl Parts {
    /// Measures the bare parts.
    pub(super) fn measure(whole: &Measured, plain: &Measured, setup: &Setup) -> Self {
        let ticks = Ticks::new();
        let coding = if is_coded(whole) { coding(&ticks, whole.payload_bytes) } else { 0.0 };
        let encryption = if setup.is_encrypted { encryption(&ticks, whole.frame_len) } else { 0.0 };
        Parts {
            whole: whole.box_ticks_per_packet().unwrap_or(0.0),
            plain: plain.box_ticks_per_packet().unwrap_or(0.0),
            coding,
            encryption,
        }
    }

    /// Ratio of the whole to the sum of the parts.
    pub fn ratio(&self) -> f64 {
        self.whole / (self.plain + self.coding + self.encryption).max(1.0)
    }

    /// Figures by name.
    pub fn values(&self) -> [(&'static str, f64); 4] {
        [
            ("plain_cycles_per_packet", self.plain),
            ("coding_cycles_per_packet", self.coding),
            ("encryption_cycles_per_packet", self.encryption),
            ("to_parts_ratio", self.ratio()),
        ]
    }
}

/// Returns whether any parity was sent: without loss, even `always` sends none.
fn is_coded(whole: &Measured) -> bool {
    let counts = whole.stages.iter().flat_map(|stage| &stage.seen.counts);
    counts.into_iter().any(|(name, count)| *name == "parity_datagrams" && *count > 0)
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(0.0)
}

fn per_packet(ticks: &Ticks, mut one: impl FnMut(u64)) -> f64 {
    let mut round = |from: u64| {
        let start = ticks.now();
        (from..from + PACKETS).for_each(&mut one);
        (ticks.now() - start) as f64 / PACKETS as f64
    };
    median((0..ROUNDS as u64).map(|number| round(number * PACKETS)).collect())
}

/// One parity for each [`SYMBOLS`] packets.
fn coding(ticks: &Ticks, payload_bytes: usize) -> f64 {
    let Ok(layout) = Layout::new(SYMBOLS, 1, 1) else { return 0.0 };
    let mut encoder = Encoder::new(Some(layout));
    let payload = vec![5_u8; payload_bytes];
    per_packet(ticks, |number| {
        // Numbers increase by one, as the encoder requires.
        let _ = black_box(encoder.add(number, &HEAD, &Body::bytes(&payload)));
        while let Some(parity) = encoder.next_parity() {
            black_box(parity);
        }
    })
}

fn encryption(ticks: &Ticks, bytes: usize) -> f64 {
    let Ok(key) = UnboundKey::new(&AES_256_GCM, &[3; 32]) else { return 0.0 };
    let (key, mut buffer) = (LessSafeKey::new(key), vec![1_u8; bytes]);
    let nonce = |number: u64| {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    };
    per_packet(ticks, |number| {
        let bound = || Aad::from([7_u8; 32]);
        if let Ok(tag) = key.seal_in_place_separate_tag(nonce(number), bound(), &mut buffer) {
            let opened =
                key.open_in_place_separate_tag(nonce(number), bound(), tag, &mut buffer, 0..);
            black_box(opened.is_ok());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_parts_cost_something_and_more_for_more_bytes() {
        let ticks = Ticks::new();
        for part in [coding, encryption] {
            let (short, long) = (part(&ticks, 64), part(&ticks, 4096));
            assert!(short > 1.0 && long > short, "{short} {long}");
        }
    }

    #[test]
    fn the_whole_is_held_against_the_sum() {
        let parts = Parts { whole: 1150.0, plain: 600.0, coding: 100.0, encryption: 300.0 };
        assert!((parts.ratio() - 1.15).abs() < 1e-9);
    }
}
