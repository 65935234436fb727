//! The WAN transport between two whole boxes: what its headers and repair leave of a path.
//!
//! A loaded path carries frames, retransmissions and parity. The box chooses the parity that costs
//! least together with the retransmissions that remain (docs/spec/wan-transport.md, "When").

use crate::path::Path;
use crate::wire::Message;

/// Header of the transport in each frame.
const HEADER: f64 = 24.0;
/// Longest groups: DATA, and the most parities for them.
const SYMBOLS: u32 = 128;
const PARITIES_MAX: u32 = 8;
/// Most copies of a retransmitted frame.
const COPIES_MAX: u32 = 4;

/// Goodput of messages of `size` bytes over a path that they fill.
pub(crate) fn goodput_bps(path: &Path, size: u64, message: &Message) -> f64 {
    let wire_bytes = message.wire_bytes + message.packets * HEADER;
    let frame_bits = wire_bytes / message.packets * 8.0;
    let in_flight = path.rtt_ns() * path.rate_bps / 1e9 / frame_bits;
    size as f64 / wire_bytes * path.rate_bps / (1.0 + repair(path.loss, in_flight))
}

/// Retransmissions and parity per frame, with `in_flight` frames in a round trip.
fn repair(loss: f64, in_flight: f64) -> f64 {
    let cost = |parities: u32| {
        let residual = residual_loss(loss, parities);
        let retransmitted = residual * f64::from(copies(residual, in_flight)) / (1.0 - loss);
        f64::from(parities) / f64::from(SYMBOLS) + retransmitted
    };
    (0..=PARITIES_MAX).map(cost).fold(f64::INFINITY, f64::min)
}

/// Copies of a retransmitted frame: one more while, without it, a frame would lose all its copies
/// in a round trip.
fn copies(loss: f64, in_flight: f64) -> u32 {
    let left = |copies: u32| in_flight * loss.powi(copies as i32);
    (1..COPIES_MAX).find(|&copies| left(copies) <= 1.0).unwrap_or(COPIES_MAX)
}

/// Loss that remains of independent losses: a group recovers as many as it has parities.
fn residual_loss(loss: f64, parities: u32) -> f64 {
    let members = f64::from(SYMBOLS + parities);
    let mut probability = (1.0 - loss).powf(members);
    let mut recovered = 0.0;
    for lost in 1..=parities {
        let lost = f64::from(lost);
        probability *= (members - lost + 1.0) / lost * loss / (1.0 - loss);
        recovered += probability * lost / members;
    }
    (loss - recovered).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_recovers_up_to_its_number_of_losses() {
        assert_eq!(residual_loss(1e-3, 0), 1e-3);
        // Binomial: all but the groups of 130 with three losses or more.
        let p: f64 = 1e-2;
        let at = |lost: i32, ways: f64| {
            ways * p.powi(lost) * (1.0 - p).powi(130 - lost) * f64::from(lost) / 130.0
        };
        let expected = p - at(1, 130.0) - at(2, 130.0 * 129.0 / 2.0);
        assert!((residual_loss(p, 2) - expected).abs() < 1e-12);
    }

    #[test]
    fn repair_is_the_loss_itself_until_parity_is_cheaper() {
        assert_eq!(repair(0.0, 3000.0), 0.0);
        assert!((repair(1e-4, 3000.0) / 1e-4 - 1.0).abs() < 0.01);
        // Two copies of each.
        assert!((repair(1e-3, 3000.0) / 2e-3 - 1.0).abs() < 0.01);
        let (none, with) = (0.05 * 3.0 / 0.95, repair(0.05, 3000.0));
        assert!(with > 0.05 && with < none, "{with}");
    }
}
