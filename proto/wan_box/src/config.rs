//! The configuration of each part of a box, and the dependencies between them.

use longhaul_seal::Cleartext;
use longhaul_secret::Seed;
use longhaul_units::Duration;
use thiserror::Error;

/// Memory for frames that wait for a far box because they must not leave in cleartext, in bytes,
/// for all cores.
const WAITING_BYTES_MAX: u64 = 16 << 20;

/// Time between two searches for a far box if traffic without one is dropped.
const PAUSE_WHEN_CLOSED: Duration = Duration::from_ms(1000);

/// Configuration of a box. Default: an accelerator alone, with its own defaults.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The near half, for this site's requesters.
    pub near: longhaul_accel::Config,
    /// The other parts of a whole box; `None` for an accelerator alone.
    pub whole: Option<Box<Whole>>,
}

/// Parts of a whole box other than its near half.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The far half, for this site's responders; its LAN side faces the WAN.
    pub far: longhaul_accel::Config,
    /// The transport between the halves and the WAN.
    pub transport: longhaul_wan::Config,
    /// Encryption of all datagrams between the boxes, on every path.
    pub seal: Option<longhaul_seal::Config>,
    /// Fetches the data that storage commands announce.
    pub read_ahead: Option<longhaul_readahead::Config>,
}

/// Configurations of a box's accelerators, which may change while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Halves {
    /// For this site's requesters.
    pub near: longhaul_accel::Config,
    /// For this site's responders, in a whole box.
    pub far: Option<longhaul_accel::Config>,
}

/// Identity of a box: a public number, and an unrelated secret. Both must differ between the boxes
/// of a path, and between starts of a box.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Box number, sent in every HELLO.
    pub box_id: u64,
    /// Seed of the instance, session numbers, cookies and nonces.
    pub seed: Seed,
}

impl Identity {
    /// Deterministic identity for virtual time and tests.
    pub fn of_scenario(number: u64) -> Self {
        Identity { box_id: number, seed: Seed::of_scenario(number) }
    }
}

/// Why the configuration of a box is invalid, by part.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Error of an accelerator.
    #[error(transparent)]
    Accelerator(#[from] longhaul_accel::ConfigError),
    /// Error of the transport.
    #[error("transport: {0}")]
    Transport(longhaul_wan::ConfigError),
    /// Error of the seal.
    #[error("keys: {0}")]
    Seal(longhaul_seal::ConfigError),
    /// Error of the read-ahead.
    #[error("read-ahead: {0}")]
    ReadAhead(longhaul_readahead::ConfigError),
}

impl Halves {
    /// The accelerators of a box: `of_box` unchanged or, for a whole box, both its halves.
    /// `round_trip` is the path's RTT, zero if unknown.
    ///
    /// # Errors
    /// If `of_box` is invalid.
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

    /// A whole box: both halves of `accelerator` before `transport`, with the same burst length.
    /// `round_trip` is the path's RTT, zero if unknown.
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

    /// Adds a seal: a whole box encrypts all that it sends to the far one, and drops or passes RDMA
    /// traffic without a far box according to `seal`. Has no effect on a box without a transport.
    pub fn sealed(mut self, seal: Option<longhaul_seal::Config>) -> Self {
        let (Some(whole), Some(seal)) = (&mut self.whole, seal) else { return self };
        whole.transport.is_sealed = true;
        let mut seal = longhaul_seal::Config { paths: whole.transport.paths.len() as u8, ..seal };
        if let Cleartext::Of(prefixes) = &seal.cleartext {
            // Such frames must wait for a far box.
            whole.transport.without_box = prefixes.clone();
            whole.transport.waiting_bytes_max =
                WAITING_BYTES_MAX / u64::from(whole.transport.cores);
            whole.transport.hello_pause = PAUSE_WHEN_CLOSED;
            seal.ask_pause = PAUSE_WHEN_CLOSED;
        }
        whole.seal = Some(seal);
        self
    }

    /// Adds read-ahead to a whole box.
    pub fn reading_ahead(mut self, read_ahead: Option<longhaul_readahead::Config>) -> Self {
        if let Some(whole) = &mut self.whole {
            whole.read_ahead = read_ahead;
        }
        self
    }

    /// Derives all randomness from `seed`, for reproducible runs in virtual time.
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
