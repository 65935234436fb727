//! ACK timeouts and retries.

use crate::nic::NicProfile;
use crate::path::Path;
use serde::Serialize;

/// The unit of local ACK timeouts: 4.096 µs (IBTA volume 1, 9.9.2.1.1).
const UNIT_NS: f64 = 4_096.0;
/// perftest's default: 67 ms.
const CODE_DEFAULT: u8 = 14;
/// The longest code: 2.4 hours.
const CODE_MAX: u8 = 31;
/// Round trips that a timer must last to avoid spurious timeouts: one for propagation and one for a
/// full window queued in front of the bottleneck, doubled because devices start the timer when they
/// begin a message, not when it has left.
const ROUND_TRIPS: f64 = 4.0;

/// The first timeout of a NIC, in nanoseconds; `None`: no timeout.
pub fn timeout_ns(nic: &NicProfile) -> Option<f64> {
    if nic.adaptive_retransmission { Some(nic.adaptive_first_ns as f64) } else { set_ns(nic) }
}

/// Time without progress after which a QP fails, in nanoseconds; `None`: never. Adaptive
/// retransmission lasts as long as all retries' timeouts together (NVIDIA, "Adaptive
/// Retransmission: Parameters Control").
pub fn patience_ns(nic: &NicProfile) -> Option<f64> {
    let waits = f64::from(nic.retry_count) + f64::from(!nic.adaptive_retransmission);
    set_ns(nic).map(|timeout| timeout * waits)
}

/// The timeout that is set.
fn set_ns(nic: &NicProfile) -> Option<f64> {
    (nic.timeout_code != 0).then(|| of_code(nic.timeout_code))
}

fn of_code(code: u8) -> f64 {
    UNIT_NS * 2_f64.powi(code.into())
}

/// Timer settings for a path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timeouts {
    /// The code to set (perftest -u), at least perftest's default of 14.
    pub code: u8,
    /// 4.096 µs x 2^code.
    pub timeout_ns: f64,
    /// Retries to set: 7, the maximum.
    pub retry_count: u8,
    /// Time after which a connection to a vanished peer fails.
    pub gives_up_after_ns: f64,
    /// The profile's timeout; `None`: no timeout.
    pub nic_timeout_ns: Option<f64>,
    /// The profile's timer is shorter than the round trip: every message is retransmitted
    /// needlessly.
    pub is_too_short: bool,
}

impl Timeouts {
    /// Timeouts for `path`, compared with the settings of `nic`.
    pub fn new(path: &Path, nic: &NicProfile) -> Self {
        let least = ROUND_TRIPS * path.rtt_ns();
        let code =
            (CODE_DEFAULT..CODE_MAX).find(|&code| of_code(code) >= least).unwrap_or(CODE_MAX);
        let retry_count = 7;
        let nic_timeout_ns = timeout_ns(nic);
        Timeouts {
            code,
            timeout_ns: of_code(code),
            retry_count,
            gives_up_after_ns: of_code(code) * f64::from(retry_count + 1),
            nic_timeout_ns,
            is_too_short: nic_timeout_ns.is_some_and(|timeout| timeout <= path.rtt_ns()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(km: f64) -> u8 {
        Timeouts::new(&Path::of_km(km, 1e11), &NicProfile::ideal()).code
    }

    #[test]
    fn perftests_default_lasts_to_1677_km_and_doubles_with_the_distance() {
        assert_eq!([0.0, 380.0, 1600.0].map(code), [14; 3]);
        assert_eq!([1_700.0, 3_400.0, 10_000.0].map(code), [15, 16, 17]);
        assert_eq!(code(1_000_000.0), 24);
    }

    #[test]
    fn an_adaptive_timer_is_too_short_from_its_first_wait_on() {
        let nic = NicProfile { adaptive_retransmission: true, ..NicProfile::ideal() };
        let short = |km| Timeouts::new(&Path::of_km(km, 1e11), &nic).is_too_short;
        assert!(!short(199.0) && short(200.0));
    }
}
