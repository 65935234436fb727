//! Devices on one segment in virtual time, and a trace of all frames on it.

use crate::pair::{Pair, Wire};
use longhaul_rnic::Config;
use longhaul_units::Duration;
use std::ops::{Deref, DerefMut};

impl Wire {
    /// `true` if packets can be lost at random.
    pub fn is_lossy(&self) -> bool {
        self.loss > 0.0 || self.corruption > 0.0
    }

    /// Maximum lifetime of a frame in flight.
    pub fn life(&self) -> Duration {
        self.delay + self.jitter + Duration::from_ns(1)
    }
}

pub struct Net {
    devices: Pair,
    /// Hash of all frames and their times, in order.
    pub trace: u64,
}

impl Deref for Net {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.devices
    }
}

impl DerefMut for Net {
    fn deref_mut(&mut self) -> &mut Pair {
        &mut self.devices
    }
}

impl Net {
    pub fn new(
        seed: u64,
        count: usize,
        memory: usize,
        wire: Wire,
        change: impl Fn(&mut Config),
    ) -> Self {
        let mut devices = Pair::among(count, seed, memory, change);
        devices.set_wire(wire);
        devices.tap().seen = Some(Vec::new());
        Net { devices, trace: 0xcbf2_9ce4_8422_2325 }
    }

    /// Adds to the trace.
    pub fn note(&mut self, value: u64) {
        self.trace = (self.trace ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }

    /// Advances time by `span`.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let happens = self.nodes.step_until(end);
            self.devices.now = self.nodes.now();
            let seen = self.tap().seen.replace(Vec::new());
            for (_, bytes) in seen.into_iter().flatten() {
                let hash = |h: u64, &b: &u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
                self.note(bytes.iter().fold(self.now.as_ps(), hash));
            }
            if !happens {
                return;
            }
        }
    }
}
