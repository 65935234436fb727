//! The path between two NICs.

use crate::Invalid;
use crate::wire::MTUS;
use serde::Serialize;

/// Propagation delay of fibre: 5 µs per km, as in all published reports (10 km = 50 µs one way, NTT
/// Technical Review, table 1). A refractive index of 1.468 gives 4.9.
pub const FIBRE_NS_PER_KM: f64 = 5_000.0;

/// A symmetric path with one bottleneck and an unlimited queue in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Path {
    /// One-way delay of fibre and equipment in nanoseconds, without serialisation: 0 to 10 s.
    pub one_way_ns: f64,
    /// Rate of the bottleneck in bits on the wire per second.
    pub rate_bps: f64,
    /// Independent loss probability per packet: 0 to below 1.
    pub loss: f64,
    /// Path MTU of RDMA in payload bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// IPv6 headers take 20 bytes more than IPv4's.
    pub ipv6: bool,
    /// A VLAN tag takes 4 bytes.
    pub vlan: bool,
}

impl Path {
    /// A fibre of `km` at `rate_bps`, without equipment delay and loss, MTU 4096, IPv4 and no VLAN.
    pub fn of_km(km: f64, rate_bps: f64) -> Self {
        Path {
            one_way_ns: km * FIBRE_NS_PER_KM,
            rate_bps,
            loss: 0.0,
            mtu: 4096,
            ipv6: false,
            vlan: false,
        }
    }

    /// Round-trip time in nanoseconds, without serialisation.
    pub fn rtt_ns(&self) -> f64 {
        2.0 * self.one_way_ns
    }

    /// Bandwidth-delay product in bytes: one RTT at the bottleneck's rate.
    pub fn bandwidth_delay_bytes(&self) -> f64 {
        self.rtt_ns() * self.rate_bps / 8e9
    }

    /// Validates every value.
    ///
    /// # Errors
    ///
    /// Names the first invalid value and its range.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(0.0..=1e10).contains(&self.one_way_ns) {
            return Err(Invalid::new("one-way delay (ns)", self.one_way_ns, "0 to 10 s"));
        }
        if !(1e3..=1e15).contains(&self.rate_bps) {
            return Err(Invalid::new("rate (bit/s)", self.rate_bps, "1 kbit/s to 1 Pbit/s"));
        }
        if !(0.0..1.0).contains(&self.loss) {
            return Err(Invalid::new("loss", self.loss, "0 to below 1"));
        }
        if !MTUS.contains(&self.mtu) {
            return Err(Invalid::new("path MTU", self.mtu, "256, 512, 1024, 2048 or 4096"));
        }
        Ok(())
    }
}
