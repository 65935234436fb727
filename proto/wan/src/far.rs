//! Far boxes that the configuration names: who is asked for the addresses of a site.

use crate::Config;
use longhaul_wire::{Path, Prefix};
use std::net::IpAddr;

/// Most of [`crate::Config::far`]: each is looked at once for each address that is learnt.
pub(crate) const FAR_MAX: usize = 256;

/// A site's far box, known from the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarBox {
    /// The site's addresses. No two far boxes have one in common.
    pub prefix: Prefix,
    /// An address behind the far box, of the same family: it is asked for in place of all those of
    /// the site, and what it answers holds for them. `None`: each address is asked for by itself,
    /// as where nothing is configured.
    pub via: Option<IpAddr>,
}

/// See the module.
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

    /// The route that HELLOs for `route`'s destination take, the same for all of a site. `None`:
    /// none are sent.
    pub(crate) fn ask_along(&self, route: Path) -> Option<Path> {
        if self.without.iter().any(|prefix| prefix.contains(route.destination_ip)) {
            return None;
        }
        match self.far.iter().find(|far| far.prefix.contains(route.destination_ip)) {
            Some(FarBox { via: Some(via), .. }) => Some(Path { destination_ip: *via, ..route }),
            Some(_) => Some(route),
            // An answer comes from where the HELLO went.
            None if self.far.iter().any(|far| far.via == Some(route.destination_ip)) => Some(route),
            None => self.asks_others.then_some(route),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FarBox> {
        self.far.iter()
    }
}
