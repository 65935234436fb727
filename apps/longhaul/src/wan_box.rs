//! A box at one site: an accelerator, or both of its halves with the WAN transport behind them.

use crate::problem::Problem;
use longhaul_accel::{Accelerator, Config, ConfigError};
use longhaul_node::{Chain, Mirrored};
use longhaul_seal::Seal;
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wan::{PathConfig, Transport};

/// Side 0 is the LAN, side 1 the WAN: the near accelerator; behind it the far one, turned round, and the transport, where
/// there are any; and the seal where the boxes have keys.
pub type WanBox = Chain<Accelerator, Chain<Mirrored<Accelerator>, Chain<Transport, Seal>>>;

/// A box that is an accelerator alone.
pub fn alone(config: Config) -> Result<WanBox, Problem> {
    Ok(Chain::new(Some(accelerator(config)?), None))
}

/// A whole box, for so many paths that each take `delay` one way, if that is known, and `rate`. `burst_bytes` leave the transport back to back after
/// a pause. Both boxes of a path take another `seed`, and so does each start of a box. With `sealing` all that the boxes send each
/// other is encrypted.
pub fn whole(
    config: Config,
    paths: usize,
    rate: Option<BitRate>,
    delay: Option<Duration>,
    seed: u64,
    sealing: Option<longhaul_seal::Config>,
) -> Result<WanBox, Problem> {
    let round_trip = delay.unwrap_or(Duration::ZERO).times(2);
    let path = PathConfig { rate: rate.into(), burst_bytes: config.burst_bytes };
    let sized = match rate {
        Some(rate) if delay.is_some() => {
            longhaul_wan::Config::for_paths(vec![path; paths], rate.bytes_in(round_trip) * paths as u64)
        }
        _ => longhaul_wan::Config { paths: vec![path; paths], ..longhaul_wan::Config::default() },
    };
    let transport = Transport::new(longhaul_wan::Config { box_id: seed, seed, ..sized });
    let transport = transport.map_err(|e| Problem::plain(format!("transport: {e}")))?;
    let [near, far] = config.halves(round_trip);
    let seal = sealing.map(Seal::new).transpose().map_err(|e| Problem::plain(format!("keys: {e}")))?;
    let behind = Chain::new(Some(Mirrored(accelerator(far)?)), Some(Chain::new(Some(transport), seal)));
    Ok(Chain::new(Some(accelerator(near)?), Some(behind)))
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
    if let Some(near) = near_mut(whole) {
        near.set_draining(now, draining);
    }
    if let Some(far) = far_mut(whole) {
        far.set_draining(now, draining);
    }
}

fn near_mut(whole: &mut WanBox) -> Option<&mut Accelerator> {
    whole.left_mut()
}

fn far_mut(whole: &mut WanBox) -> Option<&mut Accelerator> {
    Some(&mut whole.right_mut()?.left_mut()?.0)
}

fn accelerator(config: Config) -> Result<Accelerator, Problem> {
    Accelerator::new(config).map_err(|e| Problem::plain(e.to_string()))
}

/// The half for the requesters of this site.
pub fn near(whole: &WanBox) -> Option<&Accelerator> {
    whole.left()
}

/// The half for the responders of this site.
pub fn far(whole: &WanBox) -> Option<&Accelerator> {
    Some(&whole.right()?.left()?.0)
}

/// What is between the boxes.
pub fn transport(whole: &WanBox) -> Option<&Transport> {
    whole.right()?.right()?.left()
}

/// What encrypts between them.
pub fn seal(whole: &WanBox) -> Option<&Seal> {
    whole.right()?.right()?.right()
}
