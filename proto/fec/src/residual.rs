//! Residual loss of a layout.

use crate::{Layout, ROWS_MAX};

/// Loss model of a path: rate and burst length.
///
/// The model is Gilbert's: in its bad state the path loses every datagram, in its good state none.
/// Bursts have a geometric length. Source: Gilbert, "Capacity of a burst-noise channel", Bell
/// System Technical Journal 39, 1960.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PathLoss {
    /// Share of datagrams lost, 0 to 1.
    pub loss: f64,
    /// Mean number of datagrams lost in a row, from 1. Independent losses have 1 / (1 − loss), the
    /// minimum, to which lower values are clamped.
    pub burst: f64,
}

impl PathLoss {
    /// Independent losses.
    pub fn independent(loss: f64) -> Self {
        PathLoss { loss, burst: 1.0 }
    }

    /// Loss probabilities given that the datagram `distance` before arrived, and given that it was
    /// lost.
    ///
    /// One step leaves the bad state with probability 1 / burst, and the stationary loss is `loss`;
    /// the correlation of two states falls by a constant factor per step.
    fn transitions(self, distance: usize) -> (f64, f64) {
        let loss = self.loss.clamp(0.0, 1.0);
        let kept_bad = 1.0 - 1.0 / self.burst.max(1.0);
        // Correlation over one step; 0 for independent losses.
        let step = if loss < 1.0 { ((kept_bad - loss) / (1.0 - loss)).max(0.0) } else { 0.0 };
        let correlation = step.powi(distance as i32);
        (loss * (1.0 - correlation), loss + (1.0 - loss) * correlation)
    }
}

/// Returns the residual loss of DATA on `path` with parity of `layout`, 0 to 1.
///
/// Exact for the model if the parities follow their block in the order of
/// [`Encoder::next_parity`](crate::Encoder::next_parity). The members of a group and then its
/// parities lie `stride` datagrams apart, so their states are a chain of the same kind with the
/// correlation of that distance. The sum runs over the number of losses in the group up to `rows`,
/// with the probability of each and the DATA expected among them: those are recovered, all other
/// lost DATA are not. This is Elliott's method for block errors (Bell System Technical Journal 42,
/// 1963).
pub fn residual_loss(layout: Layout, path: PathLoss) -> f64 {
    let (after_good, after_bad) = path.transitions(layout.stride());
    let (symbols, rows) = (layout.symbols(), layout.rows());
    let loss = path.loss.clamp(0.0, 1.0);
    // Indexed by losses so far, for each state of the latest datagram: probability, and expected
    // lost DATA.
    let (mut good, mut bad) = ([(0.0, 0.0); ROWS_MAX + 1], [(0.0, 0.0); ROWS_MAX + 1]);
    good[0] = (1.0 - loss, 0.0);
    bad[1] = (loss, loss);
    for place in 1..symbols + rows {
        let counts = if place < symbols { 1.0 } else { 0.0 };
        // Downward, because each entry derives from those for as many losses or one less.
        for losses in (0..=rows).rev() {
            let (g, b) = (good[losses], bad[losses]);
            good[losses] = mix(g, 1.0 - after_good, b, 1.0 - after_bad);
            bad[losses] = match losses.checked_sub(1) {
                Some(fewer) => {
                    let (p, data) = mix(good[fewer], after_good, bad[fewer], after_bad);
                    (p, data + counts * p)
                }
                None => (0.0, 0.0),
            };
        }
    }
    let repaired: f64 = good[..=rows].iter().chain(&bad[..=rows]).map(|(_, data)| data).sum();
    (loss - repaired / symbols as f64).max(0.0)
}

fn mix(a: (f64, f64), share_a: f64, b: (f64, f64), share_b: f64) -> (f64, f64) {
    (a.0 * share_a + b.0 * share_b, a.1 * share_a + b.1 * share_b)
}
