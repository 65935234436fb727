//! Names of AF_XDP ports:
//! `xdp:INTERFACE[,native|generic][,copy|zerocopy][,queues=N][,frames=N][,only=roce]`.

use longhaul_af_xdp::{Copying, Mode, Wanted, XdpConfig};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// An interface, and how to attach to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xdp {
    /// Name of the interface.
    pub interface: String,
    mode: Mode,
    copying: Copying,
    wanted: Wanted,
    queues: Option<u16>,
    /// Frames per queue; `None`: the port's default.
    frames: Option<u32>,
}

impl Xdp {
    /// Configuration of the port.
    pub fn config(&self, frame_bytes_max: usize) -> XdpConfig {
        XdpConfig {
            mode: self.mode,
            copying: self.copying,
            wanted: self.wanted,
            queues: self.queues,
            receive_frames: self.frames,
            frame_bytes_max,
            ..XdpConfig::new(&self.interface)
        }
    }

    /// True if no frames are left to the kernel.
    pub fn takes_everything(&self) -> bool {
        self.wanted == Wanted::Everything
    }

    fn set(&mut self, option: &str) -> Result<(), XdpNameError> {
        match option.split_once('=') {
            None if option == "native" => self.mode = Mode::Native,
            None if option == "generic" => self.mode = Mode::Generic,
            None if option == "copy" => self.copying = Copying::Copy,
            None if option == "zerocopy" => self.copying = Copying::ZeroCopy,
            Some(("only", "roce")) => self.wanted = Wanted::Roce,
            Some(("queues", number)) => {
                let queues = number
                    .parse()
                    .ok()
                    .filter(|queues| (1..=XdpConfig::QUEUES_MAX).contains(queues));
                self.queues = Some(queues.ok_or_else(|| XdpNameError::Queues(number.to_string()))?);
            }
            Some(("frames", number)) => {
                let frames = number.parse::<u32>().ok();
                let frames = frames
                    .filter(|frames| frames.is_power_of_two() && (64..=16384).contains(frames));
                self.frames = Some(frames.ok_or_else(|| XdpNameError::Frames(number.to_string()))?);
            }
            _ => return Err(XdpNameError::Option(option.to_string())),
        }
        Ok(())
    }
}

/// Why a text is not an AF_XDP port.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum XdpNameError {
    /// The interface is missing.
    #[error("an AF_XDP port is xdp:INTERFACE[,OPTION...], as in xdp:eth1,queues=4")]
    NoInterface,
    /// An option is unknown.
    #[error(
        "'{0}' is not an option of an xdp: port: write native or generic, copy or zerocopy, \
         queues=N, frames=N, only=roce"
    )]
    Option(String),
    /// The number of queues is invalid.
    #[error("'{0}' is not a number of queues: write 1 to {most}", most = XdpConfig::QUEUES_MAX)]
    Queues(String),
    /// The number of frames is invalid.
    #[error("'{0}' is not a number of frames: write a power of two from 64 to 16384")]
    Frames(String),
    /// Generic mode always copies.
    #[error("generic mode copies: leave out 'generic' or 'zerocopy'")]
    GenericZeroCopy,
}

impl FromStr for Xdp {
    type Err = XdpNameError;

    fn from_str(text: &str) -> Result<Self, XdpNameError> {
        let mut parts = text.split(',');
        let interface = parts.next().unwrap_or_default();
        if interface.is_empty() || interface.contains(['/', ' ', ':']) {
            return Err(XdpNameError::NoInterface);
        }
        let mut xdp = Xdp {
            interface: interface.to_string(),
            mode: Mode::Auto,
            copying: Copying::Auto,
            wanted: Wanted::Everything,
            queues: None,
            frames: None,
        };
        parts.try_for_each(|option| xdp.set(option))?;
        if (xdp.mode, xdp.copying) == (Mode::Generic, Copying::ZeroCopy) {
            return Err(XdpNameError::GenericZeroCopy);
        }
        Ok(xdp)
    }
}

impl fmt::Display for Xdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xdp:{}", self.interface)?;
        f.write_str(match self.mode {
            Mode::Auto => "",
            Mode::Native => ",native",
            Mode::Generic => ",generic",
        })?;
        f.write_str(match self.copying {
            Copying::Auto => "",
            Copying::Copy => ",copy",
            Copying::ZeroCopy => ",zerocopy",
        })?;
        if let Some(queues) = self.queues {
            write!(f, ",queues={queues}")?;
        }
        if let Some(frames) = self.frames {
            write!(f, ",frames={frames}")?;
        }
        f.write_str(if self.wanted == Wanted::Roce { ",only=roce" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_written() {
        for text in [
            "xdp:eth1",
            "xdp:eth1,native",
            "xdp:eth1,generic,queues=4",
            "xdp:eth1,copy,only=roce",
            "xdp:eth1,native,zerocopy,queues=64,frames=4096,only=roce",
        ] {
            let xdp: Xdp = text.strip_prefix("xdp:").unwrap().parse().unwrap();
            assert_eq!(xdp.to_string(), text);
        }
        let xdp: Xdp = "eth1,native,queues=2,frames=512,only=roce".parse().unwrap();
        let config = xdp.config(9000);
        assert_eq!(
            (config.mode, config.queues, config.wanted),
            (Mode::Native, Some(2), Wanted::Roce)
        );
        assert_eq!((config.receive_frames, config.frame_bytes_max), (Some(512), 9000));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, part) in [
            ("", "an AF_XDP port is xdp:INTERFACE"),
            ("a b", "an AF_XDP port is xdp:INTERFACE"),
            ("eth1,fast", "'fast' is not an option"),
            ("eth1,", "'' is not an option"),
            ("eth1,only=tcp", "'only=tcp' is not an option"),
            ("eth1,queues=0", "'0' is not a number of queues"),
            ("eth1,queues=65", "1 to 64"),
            ("eth1,frames=100", "power of two"),
            ("eth1,generic,zerocopy", "generic mode copies"),
        ] {
            let refusal = text.parse::<Xdp>().unwrap_err().to_string();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
    }
}
