//! A box at one site: an accelerator, or both of its halves with the WAN transport behind them.

use crate::problem::Problem;
use longhaul_accel::{Accelerator, Config, ConfigError};
use longhaul_node::{Chain, Mirrored};
use longhaul_readahead::ReadAhead;
use longhaul_seal::{Cleartext, Seal, Sealed};
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wan::{FarBox, Parity, PathConfig, Rate, Transport};
use serde::Deserialize;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// Side 0 is the LAN, sides from 1 on are the paths of the WAN: what reads ahead, where that is asked for, and the halves.
pub type WanBox = Chain<ReadAhead, Halves>;

/// The near accelerator; behind it the far one, turned round, and the transport, where there are any, with its paths sealed where the
/// boxes have keys.
type Halves = Chain<Accelerator, Chain<Mirrored<Accelerator>, Sealed<Transport>>>;

/// How fast a transport sends, as it is written: `adaptive`, `port`, or a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum WanRate {
    Adaptive,
    Port,
    Fixed(BitRate),
}

impl FromStr for WanRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "adaptive" => Ok(WanRate::Adaptive),
            "port" => Ok(WanRate::Port),
            rate => {
                let rate = rate.parse().map(WanRate::Fixed);
                rate.map_err(|e| format!("{e}; or say adaptive, or port"))
            }
        }
    }
}

impl TryFrom<String> for WanRate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl WanRate {
    /// The rate of a path of which `known` is said: without more, that is kept to.
    pub fn or_known(of: Option<Self>, known: Option<BitRate>) -> Rate {
        match of {
            None => known.into(),
            Some(WanRate::Adaptive) => Rate::Adaptive { most: known },
            Some(WanRate::Port) => Rate::Port,
            Some(WanRate::Fixed(rate)) => Rate::Fixed(rate),
        }
    }
}

/// A box that is an accelerator alone.
pub fn alone(config: Config) -> Result<WanBox, Problem> {
    Ok(Chain::new(None, Some(Chain::new(Some(accelerator(config)?), None))))
}

/// What is known of the paths of a whole box, and how they are used; all alike.
pub struct Paths {
    /// The MTU of each one's port, where it has one; 1 to 15.
    pub mtus: Vec<Option<u32>>,
    /// Rate of each.
    pub known: Option<BitRate>,
    /// What each is sent on at.
    pub rate: Rate,
    /// One way.
    pub delay: Option<Duration>,
    /// Far boxes that are known, and whether others are asked for.
    pub far: Vec<FarBox>,
    pub asks_others: bool,
    /// When parity is sent.
    pub parity: Parity,
    /// How many boxes like this share the paths, each for its part of the pairs of hosts; rates are a part already.
    pub cores: NonZeroUsize,
}

/// What a transport is told apart by: its number, which it sends to whoever asks, and a secret,
/// which has nothing to do with it.
pub struct Identity {
    pub box_id: u64,
    pub seed: longhaul_wan::Seed,
}

impl Identity {
    /// That of a box whose runs are to be alike.
    pub fn of_scenario(number: u64) -> Self {
        Identity { box_id: number, seed: longhaul_wan::Seed::of_scenario(number) }
    }
}

/// Memory for frames that wait for a far box because they may not leave in the clear, in bytes.
const WAITING_BYTES_MAX: u64 = 16 << 20;

/// Time between two searches for a far box where nothing passes without one.
const PAUSE_WHEN_CLOSED: Duration = Duration::from_ms(1000);

/// A whole box. `burst_bytes` leave the transport back to back after
/// a pause. Both boxes of a path have another `identity`, and so has each start of a box. With
/// `sealing` all that the boxes send each
/// other, on every path, is encrypted; with `reading_ahead` what commands announce is fetched ahead.
pub fn whole(
    config: Config,
    paths: &Paths,
    identity: Identity,
    sealing: Option<longhaul_seal::Config>,
    reading_ahead: Option<longhaul_readahead::Config>,
) -> Result<WanBox, Problem> {
    let round_trip = paths.delay.unwrap_or(Duration::ZERO).times(2);
    let count = paths.mtus.len();
    let around = if sealing.is_some() { longhaul_seal::OVERHEAD as u32 } else { 0 };
    let path = |mtu: &Option<u32>| {
        let most = PathConfig::default().mtu_max;
        // The port itself refuses what is longer.
        let of_port = mtu.map_or(most, |mtu| mtu.saturating_sub(around).clamp(576, most.into()) as u16);
        PathConfig { rate: paths.rate, burst_bytes: config.burst_bytes, mtu_max: of_port }
    };
    let all: Vec<_> = paths.mtus.iter().map(path).collect();
    let sized = match paths.known.or(paths.rate.most()) {
        Some(rate) if paths.delay.is_some() => {
            longhaul_wan::Config::for_paths(all, rate.bytes_in(round_trip) * count as u64)
        }
        _ => longhaul_wan::Config { paths: all, ..longhaul_wan::Config::default() },
    };
    let (far, asks_others, parity) = (paths.far.clone(), paths.asks_others, paths.parity);
    let closed = sealing.as_ref().and_then(|sealing| match &sealing.cleartext {
        Cleartext::Of(prefixes) => Some(prefixes.clone()),
        Cleartext::Any => None,
    });
    let is_closed = closed.is_some();
    let waiting = if is_closed { WAITING_BYTES_MAX / paths.cores.get() as u64 } else { 0 };
    let of_transport = longhaul_wan::Config {
        box_id: identity.box_id,
        seed: identity.seed,
        far,
        without_box: closed.unwrap_or_default(),
        waiting_bytes_max: waiting,
        is_sealed: sealing.is_some(),
        hello_pause: if is_closed { PAUSE_WHEN_CLOSED } else { sized.hello_pause },
        asks_others,
        parity,
        cores: u8::try_from(paths.cores.get()).unwrap_or(u8::MAX),
        ..part_of(sized, paths)
    };
    let transport = Transport::new(of_transport);
    let transport = transport.map_err(|e| Problem::plain(format!("transport: {e}")))?;
    let [near, far] = config.halves(round_trip);
    let sealing = sealing.map(|sealing| {
        let ask_pause = if is_closed { PAUSE_WHEN_CLOSED } else { sealing.ask_pause };
        longhaul_seal::Config { paths: count as u8, ask_pause, ..sealing }
    });
    let seal = sealing.map(Seal::new).transpose().map_err(|e| Problem::plain(format!("keys: {e}")))?;
    let behind = Chain::new(Some(Mirrored(accelerator(far)?)), Some(Sealed::new(transport, seal)));
    let ahead = reading_ahead.map(ReadAhead::new).transpose();
    let ahead = ahead.map_err(|e| Problem::plain(format!("read-ahead: {e}")))?;
    Ok(Chain::new(ahead, Some(Chain::new(Some(accelerator(near)?), Some(behind)))))
}

/// A core's part of the memory of a transport that was sized by its part of the rate, if that is known.
fn part_of(config: longhaul_wan::Config, paths: &Paths) -> longhaul_wan::Config {
    let cores = paths.cores.get() as u64;
    let passthrough_bytes_max = config.passthrough_bytes_max / cores;
    if paths.known.or(paths.rate.most()).is_some() && paths.delay.is_some() {
        return longhaul_wan::Config { passthrough_bytes_max, ..config };
    }
    let (send_bytes_max, receive_bytes_max) =
        (config.send_bytes_max / cores, config.receive_bytes_max / cores);
    longhaul_wan::Config { passthrough_bytes_max, send_bytes_max, receive_bytes_max, ..config }
}

/// What the accelerators of a box go by: near, and far where there is one.
pub type Configs = [Option<Config>; 2];

/// What [`alone`] and [`whole`] would give the accelerators of a box.
///
/// # Errors
/// As these.
pub fn configs(config: Config, delay: Option<Duration>, is_whole: bool) -> Result<Configs, Problem> {
    let configs = if is_whole {
        config.halves(delay.unwrap_or(Duration::ZERO).times(2)).map(Some)
    } else {
        [Some(config), None]
    };
    for config in configs.iter().flatten() {
        config.check().map_err(|e| Problem::plain(e.to_string()))?;
    }
    Ok(configs)
}

/// Has a box go by `configs`, all of them or none. Seeds stay.
///
/// # Errors
/// When something else of them cannot change either.
pub fn reconfigure(whole: &mut WanBox, configs: Configs) -> Result<(), ConfigError> {
    let with_seed = |one: &Accelerator, config| Config { seed: one.config().seed, ..config };
    for (one, config) in [near(whole), far(whole)].into_iter().zip(configs.clone()) {
        if let (Some(one), Some(config)) = (one, config) {
            one.config().check_change(&with_seed(one, config))?;
        }
    }
    let [of_near, of_far] = configs;
    if let (Some(near), Some(config)) = (near_mut(whole), of_near) {
        near.reconfigure(with_seed(near, config))?;
    }
    if let (Some(far), Some(config)) = (far_mut(whole), of_far) {
        far.reconfigure(with_seed(far, config))?;
    }
    Ok(())
}

/// Lets the flows of a box go, or takes them in again, as [`Accelerator::set_draining`].
pub fn set_draining(whole: &mut WanBox, now: Instant, draining: bool) {
    if let Some(ahead) = whole.left_mut() {
        ahead.set_draining(draining);
    }
    if let Some(near) = near_mut(whole) {
        near.set_draining(now, draining);
    }
    if let Some(far) = far_mut(whole) {
        far.set_draining(now, draining);
    }
}

fn near_mut(whole: &mut WanBox) -> Option<&mut Accelerator> {
    whole.right_mut()?.left_mut()
}

fn far_mut(whole: &mut WanBox) -> Option<&mut Accelerator> {
    Some(&mut whole.right_mut()?.right_mut()?.left_mut()?.0)
}

fn accelerator(config: Config) -> Result<Accelerator, Problem> {
    Accelerator::new(config).map_err(|e| Problem::plain(e.to_string()))
}

/// The half for the requesters of this site.
pub fn near(whole: &WanBox) -> Option<&Accelerator> {
    whole.right()?.left()
}

/// The half for the responders of this site.
pub fn far(whole: &WanBox) -> Option<&Accelerator> {
    Some(&whole.right()?.right()?.left()?.0)
}

/// What is between the boxes.
pub fn transport(whole: &WanBox) -> Option<&Transport> {
    Some(whole.right()?.right()?.right()?.node())
}

/// What encrypts between them.
pub fn seal(whole: &WanBox) -> Option<&Seal> {
    whole.right()?.right()?.right()?.seal()
}

/// What reads ahead.
pub fn read_ahead(whole: &WanBox) -> Option<&ReadAhead> {
    whole.left()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_word_or_a_number() {
        let most = BitRate::from_gbps(10);
        let rate = |text: &str| text.parse().map(|of| WanRate::or_known(Some(of), most));
        assert_eq!(rate("adaptive"), Ok(Rate::Adaptive { most }));
        assert_eq!(rate("port"), Ok(Rate::Port));
        assert_eq!(rate("25G"), Ok(Rate::Fixed(BitRate::from_gbps(25).unwrap())));
        assert!(rate("fast").unwrap_err().ends_with("or say adaptive, or port"));
        assert_eq!(WanRate::or_known(None, most), Rate::Fixed(most.unwrap()));
        assert_eq!(WanRate::or_known(None, None), Rate::Port);
    }
}
