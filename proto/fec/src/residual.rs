//! How much loss a layout leaves.

use crate::{Layout, ROWS_MAX};

/// How a path loses datagrams: how many, and how they cluster.
///
/// The model is Gilbert's: the path is in a good or a bad state, in the bad one every datagram is
/// lost. Bursts then have a geometric length. Source: Gilbert, "Capacity of a burst-noise channel",
/// Bell System Technical Journal 39, 1960.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PathLoss {
    /// Share of datagrams lost, 0 to 1.
    pub loss: f64,
    /// Mean number of datagrams lost in a row, from 1. Independent losses have 1 / (1 − loss), the
    /// least that there is: lower values count as it.
    pub burst: f64,
}

impl PathLoss {
    /// Losses that know nothing of one another.
    pub fn independent(loss: f64) -> Self {
        PathLoss { loss, burst: 1.0 }
    }

    /// Chances of a loss after a datagram `distance` further back that came through, and after one
    /// that was lost.
    ///
    /// One step leaves the bad state with probability 1 / burst and keeps the share `loss`; the
    /// correlation of two states falls by the same factor with every step.
    fn transitions(self, distance: usize) -> (f64, f64) {
        let loss = self.loss.clamp(0.0, 1.0);
        let kept_bad = 1.0 - 1.0 / self.burst.max(1.0);
        // Correlation over one step; 0 for independent losses.
        let step = if loss < 1.0 { ((kept_bad - loss) / (1.0 - loss)).max(0.0) } else { 0.0 };
        let correlation = step.powi(distance as i32);
        (loss * (1.0 - correlation), loss + (1.0 - loss) * correlation)
    }
}

/// The share of DATA that stays lost on a `path` behind parity of a `layout`, 0 to 1.
///
/// Exact for the model, when the parities follow their block as
/// [`Encoder::next_parity`](crate::Encoder::next_parity) gives them. The members of a group and
/// then its parities lie `stride` datagrams apart, so their states are a chain of the same kind
/// with the correlation of that distance. The sum runs over the number of losses in the group up to
/// `rows`, with the probability of each and the DATA expected among them: those come back, all
/// other lost DATA do not. Elliott (Bell System Technical Journal 42, 1963) counts block errors in
/// this way.
pub fn residual_loss(layout: Layout, path: PathLoss) -> f64 {
    let (after_good, after_bad) = path.transitions(layout.stride());
    let (symbols, rows) = (layout.symbols(), layout.rows());
    let loss = path.loss.clamp(0.0, 1.0);
    // By losses so far: probability, and DATA lost weighted by it; for each state of the latest
    // datagram.
    let (mut good, mut bad) = ([(0.0, 0.0); ROWS_MAX + 1], [(0.0, 0.0); ROWS_MAX + 1]);
    good[0] = (1.0 - loss, 0.0);
    bad[1] = (loss, loss);
    for place in 1..symbols + rows {
        let counts = if place < symbols { 1.0 } else { 0.0 };
        // Downward: each entry is made of those for as many losses or one less.
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
