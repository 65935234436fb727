//! Parameters of DCQCN, under the names of NVIDIA's driver.

use longhaul_units::{BitRate, Duration};

const MBPS: u64 = 1_000_000;

/// Bytes per unit of `rpg_byte_reset`.
///
/// The field has 15 bits and a default of 32767. In bytes, that would be an increase every 3 µs at
/// 100 Gbit/s; in units of 64 bytes it is 2 MiB, near the paper's 10 MB and the 2 MB that testers
/// preset.
const BYTE_RESET_UNIT: u64 = 64;

/// Fraction bits of alpha and of the powers of its decay; more than an adapter's 10, to make
/// rounding irrelevant.
pub(super) const ALPHA_BITS: u32 = 32;

/// Parameters of the reaction point, with the names and units of `ecn/roce_rp` in NVIDIA's driver.
///
/// The default is a ConnectX adapter's ([`ReactionConfig::NVIDIA`]); [`ReactionConfig::PAPER`] is
/// the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactionConfig {
    /// Whether notifications are obeyed. If not, every QP stays at line rate.
    pub enable: bool,
    /// Whether each reduction sets the target rate to the rate before it. If not, the target stays
    /// if there was no increase since the last reduction, so that consecutive notifications do not
    /// forget the rate before the first.
    pub clamp_tgt_rate: bool,
    /// Like `clamp_tgt_rate`, but only if the timer has increased the rate since the last
    /// reduction.
    pub clamp_tgt_rate_after_time_inc: bool,
    /// Weight of the old value in alpha's moving average, in 1024ths: 0 to 1023. Alpha estimates
    /// the congestion of the path, 0 to 1.
    pub dce_tcp_g: u32,
    /// Interval of alpha's updates, up after a period with a notification and down otherwise: 1 to
    /// 131071 µs.
    pub dce_tcp_rtt: u32,
    /// Alpha at the first notification, in 1024ths: 1 to 1023.
    pub initial_alpha_value: u32,
    /// Minimum time between reductions, in µs; an earlier notification takes effect at its end.
    pub rate_reduce_monitor_period: u32,
    /// Rate at the first notification, in Mbit/s; 0: reduce by alpha instead.
    pub rate_to_set_on_first_cnp: u32,
    /// Increase of the target rate in additive increase, in Mbit/s, at least 1. A QP within this
    /// distance of the ceiling is no longer limited.
    pub rpg_ai_rate: u32,
    /// Increase of the target rate in hyper increase, in Mbit/s, at least 1.
    pub rpg_hai_rate: u32,
    /// Bytes on the wire between increases by the byte counter, in units of 64 bytes; 0: increase
    /// by time alone.
    pub rpg_byte_reset: u32,
    /// Time between increases by the timer, in µs, at least 1.
    pub rpg_time_reset: u32,
    /// Number of increases by time, and by bytes, that are fast recovery, halfway to the target
    /// each: 0 to 31. Further increases are additive if one counter is beyond it, and hyper if both
    /// are.
    pub rpg_threshold: u32,
    /// Binary logarithm of the divisor that turns alpha in 1024ths into the share of a reduction:
    /// 11 reduces by alpha / 2, 10 by alpha.
    pub rpg_gd: u32,
    /// Minimum share of the rate that a reduction leaves, in per cent: 0 to 100.
    pub rpg_min_dec_fac: u32,
    /// Minimum rate, in Mbit/s: 1 to the line rate.
    pub rpg_min_rate: u32,
    /// Ceiling at which a QP is no longer limited, in Mbit/s; 0: the line rate.
    pub rpg_max_rate: u32,
}

impl ReactionConfig {
    /// Defaults of ConnectX-4 to ConnectX-7, as `mlxconfig` shows them.
    pub const NVIDIA: ReactionConfig = ReactionConfig {
        enable: true,
        clamp_tgt_rate: false,
        clamp_tgt_rate_after_time_inc: true,
        dce_tcp_g: 1019,
        dce_tcp_rtt: 1,
        initial_alpha_value: 1023,
        rate_reduce_monitor_period: 4,
        rate_to_set_on_first_cnp: 0,
        rpg_ai_rate: 5,
        rpg_hai_rate: 50,
        rpg_byte_reset: 32767,
        rpg_time_reset: 300,
        rpg_threshold: 1,
        rpg_gd: 11,
        rpg_min_dec_fac: 50,
        rpg_min_rate: 1,
        rpg_max_rate: 0,
    };

    /// The paper's values at 40 Gbit/s: g = 1/256, timers of 55 µs, a byte counter of 10 MB, five
    /// steps of fast recovery, 40 Mbit/s of additive increase. Hyper increase, which the paper
    /// leaves open, is ten times that. Use it with a notification interval of 50 µs.
    pub const PAPER: ReactionConfig = ReactionConfig {
        clamp_tgt_rate: true,
        dce_tcp_g: 1020,
        dce_tcp_rtt: 55,
        rate_reduce_monitor_period: 0,
        rpg_ai_rate: 40,
        rpg_hai_rate: 400,
        rpg_byte_reset: 156_250,
        rpg_time_reset: 55,
        rpg_threshold: 5,
        ..ReactionConfig::NVIDIA
    };
}

impl Default for ReactionConfig {
    fn default() -> Self {
        ReactionConfig::NVIDIA
    }
}

/// Parameters of the notification point, with the names and units of `ecn/roce_np` in NVIDIA's
/// driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationConfig {
    /// Whether marked packets are answered by notifications.
    pub enable: bool,
    /// Minimum time between two notifications for a QP, in µs; 0 answers every marked packet.
    /// NVIDIA's default is 4, the paper's 50.
    pub min_time_between_cnps: u32,
}

impl Default for NotificationConfig {
    fn default() -> Self {
        NotificationConfig { enable: true, min_time_between_cnps: 4 }
    }
}

/// Reason to refuse a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A parameter is outside its range.
    #[error("{name} is {value}, which is not in {least} to {most}")]
    OutOfRange {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: u32,
        /// Minimum.
        least: u32,
        /// Maximum.
        most: u32,
    },
    /// The minimum rate exceeds the ceiling.
    #[error("rpg_min_rate is {min_mbps} Mbit/s, above the ceiling of {ceiling_bps} bit/s")]
    MinRateAboveCeiling {
        /// Minimum rate, in Mbit/s.
        min_mbps: u32,
        /// The lower of line rate and `rpg_max_rate`, in bit/s.
        ceiling_bps: u64,
    },
}

/// A device's validated parameters, in the units of the computation; its QPs share them.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    pub(super) reacts: bool,
    pub(super) clamp: bool,
    pub(super) clamp_after_time: bool,
    /// Weight of the old alpha, with [`ALPHA_BITS`] fraction bits.
    pub(super) keep: u64,
    pub(super) alpha_period: Duration,
    pub(super) alpha_initial: u64,
    pub(super) reduce_period: Duration,
    pub(super) first_bps: Option<u64>,
    pub(super) additive_bps: u64,
    pub(super) hyper_bps: u64,
    /// Zero for none.
    pub(super) byte_reset: u64,
    pub(super) time_reset: Duration,
    pub(super) threshold: u32,
    /// Right shift of alpha that yields the share of a reduction.
    pub(super) gd_shift: u32,
    pub(super) least_percent: u64,
    pub(super) min_bps: u64,
    pub(super) ceiling_bps: u64,
    /// Rate from which on a QP is no longer limited.
    pub(super) free_bps: u64,
    pub(super) cnp_gap: Option<Duration>,
}

impl Dcqcn {
    /// Validates the parameters of a device whose port runs at `line_rate`.
    ///
    /// # Errors
    ///
    /// Returns the first parameter that is outside its range.
    pub fn new(
        reaction: &ReactionConfig,
        notification: &NotificationConfig,
        line_rate: BitRate,
    ) -> Result<Self, ConfigError> {
        let r = reaction;
        in_range("dce_tcp_g", r.dce_tcp_g, 0, 1023)?;
        in_range("dce_tcp_rtt", r.dce_tcp_rtt, 1, 131_071)?;
        in_range("initial_alpha_value", r.initial_alpha_value, 1, 1023)?;
        in_range("rpg_ai_rate", r.rpg_ai_rate, 1, u32::MAX)?;
        in_range("rpg_hai_rate", r.rpg_hai_rate, 1, u32::MAX)?;
        in_range("rpg_time_reset", r.rpg_time_reset, 1, u32::MAX)?;
        in_range("rpg_threshold", r.rpg_threshold, 0, 31)?;
        in_range("rpg_gd", r.rpg_gd, 10, 11)?;
        in_range("rpg_min_dec_fac", r.rpg_min_dec_fac, 0, 100)?;
        in_range("rpg_min_rate", r.rpg_min_rate, 1, u32::MAX)?;
        let line = line_rate.as_bps();
        let ceiling = if r.rpg_max_rate == 0 { line } else { line.min(bps(r.rpg_max_rate)) };
        let min = bps(r.rpg_min_rate);
        if min > ceiling {
            return Err(ConfigError::MinRateAboveCeiling {
                min_mbps: r.rpg_min_rate,
                ceiling_bps: ceiling,
            });
        }
        let first = bps(r.rate_to_set_on_first_cnp).clamp(min, ceiling);
        let gap = Duration::from_us(notification.min_time_between_cnps.into());
        Ok(Dcqcn {
            reacts: r.enable,
            clamp: r.clamp_tgt_rate,
            clamp_after_time: r.clamp_tgt_rate_after_time_inc,
            keep: u64::from(r.dce_tcp_g) << (ALPHA_BITS - 10),
            alpha_period: Duration::from_us(r.dce_tcp_rtt.into()),
            alpha_initial: u64::from(r.initial_alpha_value) << (ALPHA_BITS - 10),
            reduce_period: Duration::from_us(r.rate_reduce_monitor_period.into()),
            first_bps: (r.rate_to_set_on_first_cnp != 0).then_some(first),
            additive_bps: bps(r.rpg_ai_rate),
            hyper_bps: bps(r.rpg_hai_rate),
            byte_reset: u64::from(r.rpg_byte_reset) * BYTE_RESET_UNIT,
            time_reset: Duration::from_us(r.rpg_time_reset.into()),
            threshold: r.rpg_threshold,
            gd_shift: r.rpg_gd - 10,
            least_percent: r.rpg_min_dec_fac.into(),
            min_bps: min,
            ceiling_bps: ceiling,
            // Above the minimum rate even if a step exceeds the whole range.
            free_bps: ceiling - bps(r.rpg_ai_rate).min((ceiling - min) / 2),
            cnp_gap: notification.enable.then_some(gap),
        })
    }

    /// Both points enabled, with an adapter's defaults.
    ///
    /// # Errors
    ///
    /// Returns an error if `line_rate` is below the minimum rate, 1 Mbit/s.
    pub fn nvidia(line_rate: BitRate) -> Result<Self, ConfigError> {
        Dcqcn::new(&ReactionConfig::NVIDIA, &NotificationConfig::default(), line_rate)
    }
}

fn bps(mbps: u32) -> u64 {
    u64::from(mbps) * MBPS
}

fn in_range(name: &'static str, value: u32, least: u32, most: u32) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { name, value, least, most })
}

#[cfg(test)]
mod validation {
    use super::*;

    fn build(config: &ReactionConfig, line_mbps: u64) -> Result<Dcqcn, ConfigError> {
        let line = BitRate::from_bps(line_mbps * MBPS).unwrap();
        Dcqcn::new(config, &NotificationConfig::default(), line)
    }

    #[test]
    fn presets_are_valid() {
        build(&ReactionConfig::NVIDIA, 100_000).unwrap();
        build(&ReactionConfig::PAPER, 40_000).unwrap();
        Dcqcn::nvidia(BitRate::from_gbps(400).unwrap()).unwrap();
    }

    #[test]
    fn names_the_parameter_that_is_out_of_range() {
        let config = ReactionConfig { dce_tcp_g: 1024, ..ReactionConfig::NVIDIA };
        let error = build(&config, 100_000).unwrap_err();
        assert_eq!(error.to_string(), "dce_tcp_g is 1024, which is not in 0 to 1023");
        let config = ReactionConfig { rpg_time_reset: 0, ..ReactionConfig::NVIDIA };
        assert!(matches!(
            build(&config, 1000),
            Err(ConfigError::OutOfRange { name: "rpg_time_reset", .. })
        ));
    }

    #[test]
    fn the_least_rate_fits_below_the_ceiling() {
        let config =
            ReactionConfig { rpg_min_rate: 2000, rpg_max_rate: 1000, ..ReactionConfig::NVIDIA };
        let expected =
            ConfigError::MinRateAboveCeiling { min_mbps: 2000, ceiling_bps: 1_000_000_000 };
        assert_eq!(build(&config, 100_000).unwrap_err(), expected);
    }

    #[test]
    fn the_byte_counter_counts_64_bytes() {
        assert_eq!(build(&ReactionConfig::NVIDIA, 1000).unwrap().byte_reset, 2_097_088);
        assert_eq!(build(&ReactionConfig::PAPER, 1000).unwrap().byte_reset, 10_000_000);
    }
}
