"""Tables, figures and pages made from run records; never imports a framework."""
