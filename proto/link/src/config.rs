use crate::direction::{MEMORY_PER_FRAME_MAX, MEMORY_PER_SHORT_FRAME};
use longhaul_cc::{RedConfig, wire_bytes};
use longhaul_units::{BitRate, Duration};
use thiserror::Error;

/// What a link is like; both directions are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// One-way delay from the last bit sent to its arrival. Fibre takes 5 µs per km:
    /// [`Duration::of_fibre_m`], [`LinkConfig::fibre_km`].
    pub delay: Duration,
    /// Rate in bits on the wire: a frame takes its length and 24 bytes. `None`: no serialisation and no queue;
    /// only memory bounds what is in flight.
    pub rate: Option<BitRate>,
    /// Room for frames that wait for the wire, in bytes on the wire. A frame that finds the wire idle needs none;
    /// a frame that would exceed it is dropped. It adds up to `queue_bytes / rate` of delay. Paced senders need
    /// next to none in virtual time; in real time a frame loop that is held up lets frames collect in its ports and
    /// then hands them over all at once, which takes a ring's worth of queue. An unpaced RoCE sender needs about its
    /// window.
    pub queue_bytes: u64,
    /// When the queue marks frames whose sender reacts to it (RFC 3168). `None`: never. Without a rate there is no
    /// queue, and no mark.
    pub ecn: Option<RedConfig>,
    /// Probability that a frame is lost, 0 to 1, drawn for each frame by itself.
    pub loss: f64,
    /// Seed of the losses; each direction draws from its own stream.
    pub seed: u64,
    /// Bound on the memory for frames in flight, both directions together, in bytes. At 10 Gbit/s a link needs at
    /// most 20 MB per millisecond of delay, when all frames are the shortest, and about 3 MB when they are of 4 KiB.
    pub memory_bytes_max: u64,
}

impl Default for LinkConfig {
    /// No delay, no rate, no loss; 16 MiB of queue (13 ms at 10 Gbit/s) and 2 GiB of memory.
    fn default() -> Self {
        LinkConfig {
            delay: Duration::ZERO,
            rate: None,
            queue_bytes: 16 << 20,
            ecn: None,
            loss: 0.0,
            seed: 0,
            memory_bytes_max: 2 << 30,
        }
    }
}

impl LinkConfig {
    /// `km` of fibre at `rate`, everything else as in [`LinkConfig::default`].
    pub fn fibre_km(km: u64, rate: BitRate) -> Self {
        LinkConfig {
            delay: Duration::of_fibre_m(km.saturating_mul(1000)),
            rate: Some(rate),
            ..LinkConfig::default()
        }
    }

    /// The longest delay at which `memory_bytes` hold all that can be in flight at this rate and queue, whatever
    /// the frames' sizes. `None` without a rate: then there is no such bound.
    pub fn lossless_delay_max(&self, memory_bytes: u64) -> Option<Duration> {
        let rate = self.rate?;
        let wire_bytes = u128::from(memory_bytes / 2).saturating_sub(u128::from(MEMORY_PER_FRAME_MAX))
            * u128::from(wire_bytes(0))
            / u128::from(MEMORY_PER_SHORT_FRAME);
        let in_fibre = wire_bytes.saturating_sub(u128::from(self.queue_bytes));
        let ps = in_fibre.saturating_mul(8_000_000_000_000) / u128::from(rate.as_bps());
        Some(Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX)))
    }

    /// Memory that this link needs to lose nothing for want of it, in bytes; the inverse of
    /// [`LinkConfig::lossless_delay_max`]. `None` without a rate.
    pub fn memory_bytes_needed(&self) -> Option<u64> {
        let rate = self.rate?;
        let ps = u128::from(self.delay.as_ps());
        let in_fibre = (ps * u128::from(rate.as_bps())).div_ceil(8_000_000_000_000);
        let wire = in_fibre + u128::from(self.queue_bytes);
        let held =
            (wire.saturating_mul(u128::from(MEMORY_PER_SHORT_FRAME))).div_ceil(u128::from(wire_bytes(0)));
        let both = held.saturating_add(u128::from(MEMORY_PER_FRAME_MAX)).saturating_mul(2);
        Some(u64::try_from(both).unwrap_or(u64::MAX))
    }

    pub(crate) fn check(&self) -> Result<(), LinkError> {
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(LinkError::Loss { loss: self.loss });
        }
        if let Some(ecn) = self.ecn.filter(|ecn| !ecn.is_valid()) {
            return Err(LinkError::Ecn { ecn });
        }
        match (self.lossless_delay_max(self.memory_bytes_max), self.memory_bytes_needed()) {
            (Some(delay_max), Some(memory_bytes_needed)) if self.delay > delay_max => {
                Err(LinkError::Memory {
                    delay: self.delay,
                    delay_max,
                    memory_bytes_max: self.memory_bytes_max,
                    memory_bytes_needed,
                })
            }
            _ => Ok(()),
        }
    }
}

/// Why a [`LinkConfig`] is refused.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Not a probability.
    #[error("a loss of {loss} is no probability: give a number from 0 to 1")]
    Loss {
        /// The value given.
        loss: f64,
    },
    /// Thresholds the wrong way round, or no probability.
    #[error(
        "marking from {} to {} bytes with a probability of {} makes no sense: give Kmin, a Kmax that is not below it, \
         and a number from 0 to 1",
        ecn.kmin_bytes,
        ecn.kmax_bytes,
        ecn.pmax
    )]
    Ecn {
        /// The values given.
        ecn: RedConfig,
    },
    /// What is in flight could exceed the memory.
    #[error(
        "a one-way delay of {delay} is too long for {} MiB of memory, which is lossless up to {delay_max} at this \
         rate and queue: give at least {} MiB, or a shorter distance, a lower rate or a smaller queue",
        memory_bytes_max >> 20,
        memory_bytes_needed.div_ceil(1 << 20)
    )]
    Memory {
        /// The delay asked for.
        delay: Duration,
        /// The longest delay that the memory is enough for.
        delay_max: Duration,
        /// The memory given, in bytes.
        memory_bytes_max: u64,
        /// The memory that would be enough, in bytes.
        memory_bytes_needed: u64,
    },
}
