//! The configuration of each part of a box, and what follows from one part for another.

use longhaul_seal::Cleartext;
use longhaul_secret::Seed;
use longhaul_units::Duration;
use thiserror::Error;

/// Memory for frames that wait for a far box because they may not leave in the clear, in bytes, of
/// all cores.
const WAITING_BYTES_MAX: u64 = 16 << 20;

/// Time between two searches for a far box where nothing passes without one.
const PAUSE_WHEN_CLOSED: Duration = Duration::from_ms(1000);

/// What a box is made of. Default: an accelerator alone, with its own defaults.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The half for the requesters of this site.
    pub near: longhaul_accel::Config,
    /// The rest of a whole box; `None` for an accelerator alone.
    pub whole: Option<Box<Whole>>,
}

/// What a whole box has behind its near half.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The half for the responders of this site; its LAN side is that of the WAN.
    pub far: longhaul_accel::Config,
    /// Between the halves and the WAN.
    pub transport: longhaul_wan::Config,
    /// What encrypts all that the boxes send each other, on every path.
    pub seal: Option<longhaul_seal::Config>,
    /// What fetches the data that commands announce.
    pub read_ahead: Option<longhaul_readahead::Config>,
}

/// The accelerators of a box: what may change while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Halves {
    /// For the requesters of this site.
    pub near: longhaul_accel::Config,
    /// For the responders of this site, in a whole box.
    pub far: Option<longhaul_accel::Config>,
}

/// What tells boxes apart: a number, which is sent to whoever asks, and a secret, which has nothing
/// to do with it. Both boxes of a path have another, and so has each start of a box.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Sent in every HELLO.
    pub box_id: u64,
    /// Where instance, session numbers, cookies and nonces come from.
    pub seed: Seed,
}

impl Identity {
    /// For virtual time and tests: the same at each run.
    pub fn of_scenario(number: u64) -> Self {
        Identity { box_id: number, seed: Seed::of_scenario(number) }
    }
}

/// Why the configuration of a box is refused: by which part, and what it says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// By an accelerator.
    #[error(transparent)]
    Accelerator(#[from] longhaul_accel::ConfigError),
    /// By the transport.
    #[error("transport: {0}")]
    Transport(longhaul_wan::ConfigError),
    /// By the seal.
    #[error("keys: {0}")]
    Seal(longhaul_seal::ConfigError),
    /// By the read-ahead.
    #[error("read-ahead: {0}")]
    ReadAhead(longhaul_readahead::ConfigError),
}

impl Halves {
    /// The accelerators of a box: `of_box` as it is, or for a whole box both halves of it.
    /// `round_trip` is the path's, zero if unknown.
    ///
    /// # Errors
    /// When `of_box` is out of its ranges.
    pub fn new(
        of_box: longhaul_accel::Config,
        round_trip: Duration,
        is_whole: bool,
    ) -> Result<Self, longhaul_accel::ConfigError> {
        let halves = if is_whole {
            let [near, far] = of_box.halves(round_trip);
            Halves { near, far: Some(far) }
        } else {
            Halves { near: of_box, far: None }
        };
        halves.near.check()?;
        halves.far.as_ref().map_or(Ok(()), longhaul_accel::Config::check)?;
        Ok(halves)
    }
}

impl Config {
    /// An accelerator alone.
    pub fn alone(accelerator: longhaul_accel::Config) -> Self {
        Config { near: accelerator, whole: None }
    }

    /// A whole box: both halves of `accelerator` before `transport`, whose bursts are as long.
    /// `round_trip` is the path's, zero if unknown.
    pub fn whole(
        accelerator: longhaul_accel::Config,
        mut transport: longhaul_wan::Config,
        round_trip: Duration,
    ) -> Self {
        for path in &mut transport.paths {
            path.burst_bytes = accelerator.burst_bytes;
        }
        let [near, far] = accelerator.halves(round_trip);
        Config {
            near,
            whole: Some(Box::new(Whole { far, transport, seal: None, read_ahead: None })),
        }
    }

    /// With all that a whole box sends the far one encrypted, and RDMA traffic without a far box
    /// dropped or passed as `seal` says. A box without a transport has nothing to seal.
    pub fn sealed(mut self, seal: Option<longhaul_seal::Config>) -> Self {
        let (Some(whole), Some(seal)) = (&mut self.whole, seal) else { return self };
        whole.transport.is_sealed = true;
        let mut seal = longhaul_seal::Config { paths: whole.transport.paths.len() as u8, ..seal };
        if let Cleartext::Of(prefixes) = &seal.cleartext {
            // Frames wait for a far box, because nothing else may take them.
            whole.transport.without_box = prefixes.clone();
            whole.transport.waiting_bytes_max =
                WAITING_BYTES_MAX / u64::from(whole.transport.cores);
            whole.transport.hello_pause = PAUSE_WHEN_CLOSED;
            seal.ask_pause = PAUSE_WHEN_CLOSED;
        }
        whole.seal = Some(seal);
        self
    }

    /// With the data that commands announce fetched ahead, in a whole box.
    pub fn reading_ahead(mut self, read_ahead: Option<longhaul_readahead::Config>) -> Self {
        if let Some(whole) = &mut self.whole {
            whole.read_ahead = read_ahead;
        }
        self
    }

    /// With all randomness from `seed`: for virtual time, where a run is to be repeated.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.near.seed = seed;
        if let Some(whole) = &mut self.whole {
            whole.far.seed = seed ^ 1;
            whole.transport.seed = Seed::of_scenario(seed);
            if let Some(seal) = &mut whole.seal {
                seal.seed = Seed::of_scenario(seed);
            }
            if let Some(read_ahead) = &mut whole.read_ahead {
                read_ahead.seed = seed;
            }
        }
        self
    }
}
