mod bounds;
mod interleavings;
mod linux;
mod pair;
mod wire_scripts;
