//! The numbers of one window, and who can supply them.
