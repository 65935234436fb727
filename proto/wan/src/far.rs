//! Far boxes that the configuration names, with the address to ask for each site.

use crate::Config;
use longhaul_wire::{Path, Prefix};
use std::net::IpAddr;

/// Maximum length of [`crate::Config::far`]; each address that is learnt is compared with all of
/// them.
pub(crate) const FAR_MAX: usize = 256;

/// A site's far box, as configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarBox {
    /// Prefix of the site's addresses; the prefixes of two far boxes are disjoint.
    pub prefix: Prefix,
    /// An address of the same family behind the far box. HELLOs go to it in place of the site's
    /// addresses, and its answer holds for all of them. `None`: each address is searched for by
    /// itself, as without configuration.
    pub via: Option<IpAddr>,
}

pub(crate) struct FarBoxes {
    far: Vec<FarBox>,
    without: Vec<Prefix>,
    asks_others: bool,
}

impl FarBoxes {
    pub(crate) fn new(config: &Config) -> Self {
        let Config { far, without_box, asks_others, .. } = config;
        FarBoxes { far: far.clone(), without: without_box.clone(), asks_others: *asks_others }
    }

    /// Route of the HELLOs for `route`'s destination, the same for a whole site. `None` if none may
    /// be sent.
    pub(crate) fn ask_along(&self, route: Path) -> Option<Path> {
        if self.without.iter().any(|prefix| prefix.contains(route.destination_ip)) {
            return None;
        }
        match self.far.iter().find(|far| far.prefix.contains(route.destination_ip)) {
            Some(FarBox { via: Some(via), .. }) => Some(Path { destination_ip: *via, ..route }),
            Some(_) => Some(route),
            // The answer's source is the address that the HELLO went to.
            None if self.far.iter().any(|far| far.via == Some(route.destination_ip)) => Some(route),
            None => self.asks_others.then_some(route),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FarBox> {
        self.far.iter()
    }
}
