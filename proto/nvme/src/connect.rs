//! The data of a Connect command.

use crate::Nqn;
use crate::fields::{array, put, u16_at};

/// Length of the data of a Connect command.
pub const CONNECT_DATA_LEN: usize = 1024;
/// Controller that a host names if the subsystem shall choose one.
pub const DYNAMIC_CONTROLLER: u16 = 0xffff;

/// Offset of the controller.
pub(crate) const CONTROLLER_AT: u16 = 16;
/// Offset of the subsystem's name.
pub(crate) const SUBSYSTEM_AT: u16 = 256;
/// Offset of the host's name.
pub(crate) const HOST_AT: u16 = 512;

/// A host's identifier.
pub type HostId = [u8; 16];

/// Who connects to what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectData {
    /// The host's identifier.
    pub host_id: HostId,
    /// The controller, or [`DYNAMIC_CONTROLLER`].
    pub controller: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host.
    pub host: Nqn,
}

impl ConnectData {
    /// Parses the data; an error is the offset of an invalid name.
    pub(crate) fn read(data: &[u8; CONNECT_DATA_LEN]) -> Result<Self, u16> {
        let name = |at: u16| Nqn::read(&array(data, at.into())).map_err(|_| at);
        Ok(ConnectData {
            host_id: array(data, 0),
            controller: u16_at(data, CONTROLLER_AT.into()),
            subsystem: name(SUBSYSTEM_AT)?,
            host: name(HOST_AT)?,
        })
    }

    /// Writes the data.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut data = vec![0; CONNECT_DATA_LEN];
        put(&mut data, 0, &self.host_id);
        put(&mut data, CONTROLLER_AT.into(), &self.controller.to_le_bytes());
        put(&mut data, SUBSYSTEM_AT.into(), self.subsystem.as_str().as_bytes());
        put(&mut data, HOST_AT.into(), self.host.as_str().as_bytes());
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_read_as_written_and_names_are_checked() {
        let data = ConnectData {
            host_id: *b"0123456789abcdef",
            controller: DYNAMIC_CONTROLLER,
            subsystem: Nqn::discovery(),
            host: "nqn.2026-01.org.example:host".parse().unwrap(),
        };
        let mut bytes: [u8; CONNECT_DATA_LEN] = data.write().try_into().unwrap();
        assert_eq!(ConnectData::read(&bytes), Ok(data));
        bytes[512..768].fill(b'n');
        assert_eq!(ConnectData::read(&bytes), Err(HOST_AT));
    }
}
